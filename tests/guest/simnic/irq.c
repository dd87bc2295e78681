// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * One interrupt per queue. A platform port has an irq_chip of its own and
 * sends its "MSI-X message" as an IPI to the CPU the affinity selects; a port
 * on a PCI function has real MSI-X vectors and lets the x86 vector domain
 * resend them (irq_retrigger), which is an IPI of the vector to its target.
 */
#include <linux/cpumask.h>
#include <linux/interrupt.h>
#include <linux/iopoll.h>
#include <linux/irq.h>
#include <linux/irqdomain.h>
#include "simnic.h"

static int sn_set_affinity(struct irq_data *data, const struct cpumask *mask, bool force)
{
	struct sn_queue *queue = irq_data_get_irq_chip_data(data);
	unsigned int cpus = 0, cpu, nth;

	for_each_cpu_and(cpu, mask, cpu_online_mask)
		cpus++;
	if (!cpus)
		return -EINVAL;
	nth = queue->index % cpus;	/* spread, as the vector allocator does */
	for_each_cpu_and(cpu, mask, cpu_online_mask)
		if (!nth--)
			break;
	WRITE_ONCE(queue->cpu, cpu);
	irq_data_update_effective_affinity(data, cpumask_of(cpu));
	return IRQ_SET_MASK_OK;
}

/* nothing to mask: sn_queue.state says whether a message may be sent */
static void sn_irq_nothing(struct irq_data *data)
{
}

static struct irq_chip sn_irq_chip = {
	.name = "SIM-MSIX",
	.irq_mask = sn_irq_nothing,
	.irq_unmask = sn_irq_nothing,
	.irq_ack = sn_irq_nothing,
	.irq_set_affinity = sn_set_affinity,
	.flags = IRQCHIP_SKIP_SET_WAKE,
};

/* no vector to migrate in interrupt context: affinity changes at once, newer kernels' default */
#ifdef HAVE_IRQ_MOVE_PCNTXT
#define SN_IRQ_STATUS	(IRQ_NOPROBE | IRQ_MOVE_PCNTXT)
#else
#define SN_IRQ_STATUS	IRQ_NOPROBE
#endif

static int sn_domain_map(struct irq_domain *domain, unsigned int irq, irq_hw_number_t hwirq)
{
	struct sn_port *port = domain->host_data;

	irq_set_chip_data(irq, &port->queue[hwirq]);
	irq_set_chip_and_handler_name(irq, &sn_irq_chip, handle_edge_irq, "edge");
	irq_modify_status(irq, IRQ_NOREQUEST | IRQ_NOAUTOEN, SN_IRQ_STATUS);
	return 0;
}

static const struct irq_domain_ops sn_domain_ops = { .map = sn_domain_map };

/* /sys/class/net/X/device/msi_irqs/N, as PCI devices have it */
static ssize_t msi_show(struct device *dev, struct device_attribute *attr, char *buffer)
{
	return sysfs_emit(buffer, "msix\n");
}

static int sn_msi_create(struct sn_port *port)
{
	unsigned int i;

	port->msi_attr = kcalloc(sn_max_queues, sizeof(*port->msi_attr), GFP_KERNEL);
	port->msi_attrs = kcalloc(sn_max_queues + 1, sizeof(*port->msi_attrs), GFP_KERNEL);
	if (!port->msi_attr || !port->msi_attrs)
		return -ENOMEM;
	for (i = 0; i < sn_max_queues; i++) {
		struct device_attribute *attr = &port->msi_attr[i];

		sysfs_attr_init(&attr->attr);
		attr->attr.name = kasprintf(GFP_KERNEL, "%d", port->queue[i].irq);
		if (!attr->attr.name)
			return -ENOMEM;
		attr->attr.mode = 0444;
		attr->show = msi_show;
		port->msi_attrs[i] = &attr->attr;
	}
	port->msi_group.name = "msi_irqs";
	port->msi_group.attrs = port->msi_attrs;
	return sysfs_create_group(&port->parent->kobj, &port->msi_group);
}

static int sn_platform_irqs(struct sn_port *port)
{
	unsigned int i;

	port->fwnode = irq_domain_alloc_named_id_fwnode("simnic", port->number);
	if (!port->fwnode)
		return -ENOMEM;
	port->domain = irq_domain_create_linear(port->fwnode, sn_max_queues, &sn_domain_ops, port);
	if (!port->domain)
		return -ENOMEM;
	for (i = 0; i < sn_max_queues; i++) {
		port->queue[i].irq = irq_create_mapping(port->domain, i);
		if (!port->queue[i].irq)
			return -ENOMEM;
	}
	return sn_msi_create(port);
}

static int sn_pci_irqs(struct sn_port *port)
{
	unsigned int i;
	int err = pci_alloc_irq_vectors(port->pci, sn_max_queues, sn_max_queues, PCI_IRQ_MSIX);

	if (err < 0)
		return err;
	for (i = 0; i < sn_max_queues; i++) {
		struct irq_data *data;

		port->queue[i].irq = pci_irq_vector(port->pci, i);
		data = irq_get_irq_data(port->queue[i].irq);
		if (!data || !data->chip->irq_retrigger)
			return -EOPNOTSUPP;
	}
	return 0;
}

/* on an error sn_irqs_destroy() takes down what there is */
int sn_irqs_create(struct sn_port *port)
{
	return port->pci ? sn_pci_irqs(port) : sn_platform_irqs(port);
}

void sn_irqs_destroy(struct sn_port *port)
{
	unsigned int i;

	if (port->pci) {
		pci_free_irq_vectors(port->pci);
		return;
	}
	if (port->msi_group.attrs)
		sysfs_remove_group(&port->parent->kobj, &port->msi_group);
	for (i = 0; port->msi_attr && i < sn_max_queues; i++)
		kfree(port->msi_attr[i].attr.name);
	kfree(port->msi_attr);
	kfree(port->msi_attrs);
	for (i = 0; i < sn_max_queues; i++)
		if (port->queue[i].irq)
			irq_dispose_mapping(port->queue[i].irq);
	if (port->domain)
		irq_domain_remove(port->domain);
	if (port->fwnode)
		irq_domain_free_fwnode(port->fwnode);
}

/* in hard interrupt context on the CPU the message was sent to */
static void sn_irq_arrive(struct sn_queue *queue)
{
	clear_bit(SN_IN_FLIGHT, &queue->state);
	generic_handle_irq(queue->irq);
}

static void sn_irq_from_afar(void *info)
{
	sn_irq_arrive(info);
}

static void sn_irq_from_here(struct irq_work *work)
{
	sn_irq_arrive(container_of(work, struct sn_queue, here));
}

static void sn_irq_send(struct sn_queue *queue)
{
	unsigned int cpu;

	/* one is on its way, after busy polling: it will do */
	if (test_and_set_bit(SN_IN_FLIGHT, &queue->state))
		return;
	if (queue->port->pci) {
		struct irq_data *data = irq_get_irq_data(queue->irq);

		data->chip->irq_retrigger(data);
		return;
	}
	cpu = READ_ONCE(queue->cpu);
	if (cpu == get_cpu() || !cpu_online(cpu))
		irq_work_queue(&queue->here);
	else
		smp_call_function_single_async(cpu, &queue->csd);
	put_cpu();
}

static enum hrtimer_restart sn_irq_coalesced(struct hrtimer *timer)
{
	sn_irq_send(container_of(timer, struct sn_queue, coalesce));
	return HRTIMER_NORESTART;
}

/*
 * The queue has work: interrupt, now or after rx-usecs, unless NAPI is on it
 * already.
 */
void sn_irq_raise(struct sn_queue *queue)
{
	u32 usecs = READ_ONCE(queue->rx_usecs);

	if (!test_and_clear_bit(SN_ARMED, &queue->state))
		return;
	if (usecs)
		hrtimer_start(&queue->coalesce, ns_to_ktime((u64)usecs * NSEC_PER_USEC), HRTIMER_MODE_REL);
	else
		sn_irq_send(queue);
}

/* NAPI is done: the next frame interrupts; one that came meanwhile does so now */
void sn_irq_arm(struct sn_queue *queue)
{
	set_bit(SN_ARMED, &queue->state);
	smp_mb__after_atomic();		/* pairs with sn_receive() */
	if (!__ptr_ring_empty(&queue->ring))
		sn_irq_raise(queue);
}

static irqreturn_t sn_interrupt(int irq, void *info)
{
	struct sn_queue *queue = info;

	u64_stats_inc(&queue->interrupts);
	if (queue->port->pci)
		clear_bit(SN_IN_FLIGHT, &queue->state);
	napi_schedule_irqoff(&queue->napi);
	return IRQ_HANDLED;
}

void sn_irq_init(struct sn_queue *queue)
{
	INIT_CSD(&queue->csd, sn_irq_from_afar, queue);
	queue->here = IRQ_WORK_INIT_HARD(sn_irq_from_here);
#ifdef HAVE_HRTIMER_SETUP
	hrtimer_setup(&queue->coalesce, sn_irq_coalesced, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
#else
	hrtimer_init(&queue->coalesce, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	queue->coalesce.function = sn_irq_coalesced;
#endif
}

int sn_irq_request(struct sn_queue *queue)
{
	queue->state = 0;
	snprintf(queue->name, sizeof(queue->name), "%s-TxRx-%u", queue->port->dev->name,
		 queue->index);
	return request_irq(queue->irq, sn_interrupt, 0, queue->name, queue);
}

/* Nobody raises it any more and its NAPI is disabled: wait out what is on its way. */
void sn_irq_free(struct sn_queue *queue)
{
	unsigned long state;

	clear_bit(SN_ARMED, &queue->state);
	hrtimer_cancel(&queue->coalesce);
	if (read_poll_timeout(READ_ONCE, state, !(state & BIT(SN_IN_FLIGHT)), 10, USEC_PER_SEC,
			      false, queue->state))
		netdev_warn(queue->port->dev, "interrupt of queue %u was lost\n", queue->index);
	irq_work_sync(&queue->here);
	free_irq(queue->irq, queue);
}
