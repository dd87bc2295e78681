// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * /sys/kernel/debug/simnic/IFNAME/: faults to inject (fail_insert, reset).
 */
#include <linux/debugfs.h>
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
	.open = simple_open,
	.write = fail_insert_write,
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

void sn_debugfs_add(struct sn_port *port)
{
	port->debugfs = debugfs_create_dir(port->dev->name, sn_debugfs);
	debugfs_create_file("fail_insert", 0200, port->debugfs, port, &sn_fail_insert_fops);
	debugfs_create_file("reset", 0200, port->debugfs, port, &sn_reset_fops);
}

void sn_debugfs_init(void)
{
	sn_debugfs = debugfs_create_dir("simnic", NULL);
}

void sn_debugfs_exit(void)
{
	debugfs_remove_recursive(sn_debugfs);
}
