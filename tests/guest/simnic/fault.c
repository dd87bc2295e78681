// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * /sys/kernel/debug/simnic/IFNAME/: faults to inject (fail_insert, vanish,
 * reset), and what the hardware really has (rules).
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>
#include "simnic.h"

static struct dentry *sn_debugfs;

/* Is the next insertion to fail? Returns 0 or its errno, negative, once. */
int sn_fault_insert(struct sn_table *table)
{
	int err = -table->fail_errno;

	lockdep_assert_held(&table->change);
	if (!err || table->fail_after)
		return 0;
	table->fail_errno = 0;
	return err;
}

/* one has succeeded */
void sn_fault_inserted(struct sn_table *table)
{
	lockdep_assert_held(&table->change);
	if (table->fail_after)
		table->fail_after--;
	if (table->vanish)
		table->vanish--;
}

static ssize_t sn_read_line(struct file *file, char *line, size_t size, const char __user *data,
			    size_t count)
{
	if (count >= size)
		return -EINVAL;
	if (copy_from_user(line, data, count))
		return -EFAULT;
	line[count] = 0;
	strim(line);
	return 0;
}

static int fail_insert_show(struct seq_file *seq, void *unused)
{
	struct sn_port *port = seq->private;

	mutex_lock(&port->table.change);
	seq_printf(seq, "%d %u\n", port->table.fail_errno, port->table.fail_after);
	mutex_unlock(&port->table.change);
	return 0;
}

static int fail_insert_open(struct inode *inode, struct file *file)
{
	return single_open(file, fail_insert_show, inode->i_private);
}

static ssize_t fail_insert_write(struct file *file, const char __user *data, size_t count,
				 loff_t *offset)
{
	struct sn_port *port = file_inode(file)->i_private;
	unsigned int after = 0;
	char line[32];
	int error, err;

	err = sn_read_line(file, line, sizeof(line), data, count);
	if (err)
		return err;
	if (sscanf(line, "%d %u", &error, &after) < 1 || error < 0 || error > MAX_ERRNO)
		return -EINVAL;
	mutex_lock(&port->table.change);
	port->table.fail_errno = error;
	port->table.fail_after = after;
	mutex_unlock(&port->table.change);
	return count;
}

static const struct file_operations sn_fail_insert_fops = {
	.owner = THIS_MODULE,
	.open = fail_insert_open,
	.read = seq_read,
	.write = fail_insert_write,
	.llseek = seq_lseek,
	.release = single_release,
};

static int sn_reset(struct sn_port *port, const char *how)
{
	static const char * const words[] = { "keep", "wipe", "phantom", NULL };
	int what = match_string(words, -1, how), err = 0;

	if (what < 0)
		return what;
	rtnl_lock();
	if (port->dev->reg_state != NETREG_REGISTERED) {
		rtnl_unlock();
		return -ENODEV;
	}
	if (port->up) {
		netif_carrier_off(port->dev);
		sn_port_pause(port);
	}
	if (what == 2)
		sn_rules_forget(&port->table);
	else if (what == 1 || READ_ONCE(sn_persist) == SN_PERSIST_IFDOWN)
		sn_rules_wipe(&port->table);
	if (netif_running(port->dev)) {
		err = sn_port_resume(port);
		sn_carrier(port);
	}
	rtnl_unlock();
	netdev_info(port->dev, "reset (%s)\n", how);
	return err;
}

static ssize_t sn_reset_write(struct file *file, const char __user *data, size_t count,
			      loff_t *offset)
{
	char line[16];
	int err = sn_read_line(file, line, sizeof(line), data, count);

	if (!err)
		err = sn_reset(file_inode(file)->i_private, strim(line));
	return err ?: count;
}

static const struct file_operations sn_reset_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = sn_reset_write,
};

static void sn_show_address(struct seq_file *seq, const char *name, const struct sn_rule *rule,
			    const __be32 *address, const __be32 *mask)
{
	if (rule->key.v6)
		seq_printf(seq, " %s=%pI6c %s_mask=%pI6c", name, address, name, mask);
	else
		seq_printf(seq, " %s=%pI4 %s_mask=%pI4", name, address, name, mask);
}

static void sn_show_rule(struct seq_file *seq, const struct sn_rule *rule)
{
	const struct sn_key *mask = &rule->mask->bits;

	if (!rule->live)
		return;
	seq_printf(seq, "%s=%u family=%u protocol=%u protocol_mask=%#x",
		   rule->arfs ? "arfs" : "location", rule->arfs ? rule->id : rule->prio,
		   rule->key.v6 ? 6 : 4, rule->key.proto, mask->proto);
	sn_show_address(seq, "src", rule, rule->key.src, mask->src);
	sn_show_address(seq, "dst", rule, rule->key.dst, mask->dst);
	seq_printf(seq, " sport=%u sport_mask=%#x dport=%u dport_mask=%#x",
		   ntohs(rule->key.sport), ntohs(mask->sport), ntohs(rule->key.dport),
		   ntohs(mask->dport));
	if (rule->drop)
		seq_puts(seq, " queue=drop");
	else
		seq_printf(seq, " queue=%u", rule->queue);
	if (rule->rss)
		seq_printf(seq, " context=%u", rule->context);
	seq_printf(seq, " hits=%lld\n", atomic64_read(&rule->hits));
}

/* one line for each filter in the hardware; those of aRFS last */
static int sn_rules_show(struct seq_file *seq, void *unused)
{
	struct sn_port *port = seq->private;
	struct sn_table *table = &port->table;
	u32 i;

	mutex_lock(&table->change);
	for (i = 0; i < table->locations; i++) {
		if (!table->list[i])
			continue;
		sn_show_rule(seq, table->list[i]);
		if (table->list[i]->old)
			sn_show_rule(seq, table->list[i]->old);
	}
	mutex_unlock(&table->change);
	spin_lock_bh(&table->arfs_lock);
	for (i = 0; i < table->slots; i++)
		if (table->arfs[i])
			sn_show_rule(seq, table->arfs[i]);
	spin_unlock_bh(&table->arfs_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(sn_rules);

static int sn_vanish_get(void *data, u64 *value)
{
	struct sn_port *port = data;

	*value = READ_ONCE(port->table.vanish);
	return 0;
}

static int sn_vanish_set(void *data, u64 value)
{
	struct sn_port *port = data;

	if (value > UINT_MAX)
		return -EINVAL;
	mutex_lock(&port->table.change);
	port->table.vanish = value;
	mutex_unlock(&port->table.change);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(sn_vanish_fops, sn_vanish_get, sn_vanish_set, "%llu\n");

void sn_debugfs_add(struct sn_port *port)
{
	port->debugfs = debugfs_create_dir(port->dev->name, sn_debugfs);
	debugfs_create_file("fail_insert", 0600, port->debugfs, port, &sn_fail_insert_fops);
	debugfs_create_file_unsafe("vanish", 0600, port->debugfs, port, &sn_vanish_fops);
	debugfs_create_file("reset", 0200, port->debugfs, port, &sn_reset_fops);
	debugfs_create_file("rules", 0400, port->debugfs, port, &sn_rules_fops);
}

/* under RTNL; stays where it is when a port of another namespace has the name */
void sn_debugfs_rename(struct sn_port *port)
{
	if (IS_ERR_OR_NULL(port->debugfs))
		return;
#ifdef HAVE_DEBUGFS_CHANGE_NAME
	debugfs_change_name(port->debugfs, "%s", port->dev->name);
#else
	debugfs_rename(sn_debugfs, port->debugfs, sn_debugfs, port->dev->name);
#endif
}

void sn_debugfs_init(void)
{
	sn_debugfs = debugfs_create_dir("simnic", NULL);
}

void sn_debugfs_exit(void)
{
	debugfs_remove_recursive(sn_debugfs);
}
