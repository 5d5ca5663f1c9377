"""What a mount's processes do while it exists: agree with the kernel, answer, and count."""
