// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Loading and unloading, and the two kinds of device a port sits on: a
 * platform device simnic.N with an interrupt controller of its own, or
 * (pairs=0) a PCI function we use only for its MSI-X vectors. Both can be
 * unbound and bound again in sysfs: a NIC that is removed and arrives late.
 */
#include <linux/module.h>
#include "simnic.h"

static struct platform_device *sn_devices[SN_MAX_PORTS];

static int sn_platform_probe(struct platform_device *pdev)
{
	struct sn_port *port = sn_plug(&pdev->dev, NULL, pdev->id);

	if (IS_ERR(port))
		return PTR_ERR(port);
	platform_set_drvdata(pdev, port);
	return 0;
}

static void sn_platform_remove(struct platform_device *pdev)
{
	sn_unplug(platform_get_drvdata(pdev));
	platform_set_drvdata(pdev, NULL);
}

static struct platform_driver sn_platform_driver = {
	.driver = { .name = "simnic" },
	.probe = sn_platform_probe,
	.remove = sn_platform_remove,
};

static int sn_pci_probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	struct sn_port *port;
	int err = pcim_enable_device(pci);

	if (err)
		return err;
	pci_set_master(pci);
	port = sn_plug(&pci->dev, pci, -1);
	if (IS_ERR(port))
		return PTR_ERR(port);
	pci_set_drvdata(pci, port);
	return 0;
}

static void sn_pci_remove(struct pci_dev *pci)
{
	sn_unplug(pci_get_drvdata(pci));
}

/* QEMU's NVMe controller: any function with enough MSI-X vectors would do */
static const struct pci_device_id sn_pci_ids[] = { { PCI_DEVICE(0x1b36, 0x0010) }, { } };

static struct pci_driver sn_pci_driver = {
	.name = "simnic",
	.id_table = sn_pci_ids,
	.probe = sn_pci_probe,
	.remove = sn_pci_remove,
};

static void sn_devices_remove(void)
{
	unsigned int i;

	for (i = 0; i < SN_MAX_PORTS; i++) {
		if (sn_devices[i])
			platform_device_unregister(sn_devices[i]);
		sn_devices[i] = NULL;
	}
}

static int sn_device_add(unsigned int number)
{
	struct platform_device *pdev = platform_device_alloc("simnic", number);
	int err;

	if (!pdev)
		return -ENOMEM;
	set_dev_node(&pdev->dev, sn_node);
	err = platform_device_add(pdev);
	if (err) {
		platform_device_put(pdev);
		return err;
	}
	sn_devices[number] = pdev;
	return platform_get_drvdata(pdev) ? 0 : -ENODEV;	/* probe failed */
}

static int __init sn_module_init(void)
{
	unsigned int i;
	int err = sn_param_check();

	if (err)
		return err;
	sn_debugfs_init();
	err = sn_pairs ? platform_driver_register(&sn_platform_driver) :
			 pci_register_driver(&sn_pci_driver);
	if (err)
		goto no_driver;
	for (i = 0; i < sn_pairs * 2; i++) {
		err = sn_device_add(i);
		if (err)
			goto no_devices;
	}
	return 0;

no_devices:
	sn_devices_remove();
	platform_driver_unregister(&sn_platform_driver);
no_driver:
	sn_debugfs_exit();
	return err;
}

static void __exit sn_module_exit(void)
{
	if (sn_pairs) {
		sn_devices_remove();
		platform_driver_unregister(&sn_platform_driver);
	} else {
		pci_unregister_driver(&sn_pci_driver);
	}
	sn_debugfs_exit();
	rcu_barrier();		/* rules and RSS contexts that wait to be freed */
}

module_init(sn_module_init);
module_exit(sn_module_exit);
MODULE_DESCRIPTION("Cross-wired test NICs with filters, RSS and an interrupt per queue");
MODULE_LICENSE("GPL");
