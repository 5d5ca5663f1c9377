"""The work of a mount's processes while it exists: agree with the kernel, answer, and count."""
