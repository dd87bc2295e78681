// SPDX-License-Identifier: GPL-2.0-or-later
/* An idle state that executes instructions: a CPU without work uses up its turn like any other, so
 * that virtual time passes at one rate, whichever CPUs have work. It has no PAUSE, which ends a
 * turn in QEMU as HLT does. plugin.c knows the loop by its NOP. Like MWAIT it needs no IPI to wake.
 */
#include <linux/cpuidle.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sched/idle.h>

static int spin(struct cpuidle_device *device, struct cpuidle_driver *driver, int index)
{
	local_irq_enable();
	if (!current_set_polling_and_test())
		while (!need_resched())
			asm volatile(".byte 0x0f, 0x1f, 0x80; .long 0x5a5a00ff" ::: "memory");
	current_clr_polling();
	local_irq_disable();
	return index;
}

/* Without an owner: each CPU's device would hold a reference of it, and it could not be unloaded. */
static struct cpuidle_driver spinidle = {
	.name = "spinidle",
	.states = { {
		.name = "SPIN",
		.desc = "executes instructions",
		.enter = spin,
		.flags = CPUIDLE_FLAG_POLLING,
	} },
	.state_count = 1,
};

static int __init spinidle_init(void)
{
	return cpuidle_register(&spinidle, NULL);
}

static void __exit spinidle_exit(void)
{
	cpuidle_unregister(&spinidle);
}

module_init(spinidle_init);
module_exit(spinidle_exit);
MODULE_DESCRIPTION("idle CPUs that execute instructions");
MODULE_LICENSE("GPL");
