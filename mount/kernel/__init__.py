"""The kernel's FUSE protocol, its device, and mount(2)."""
