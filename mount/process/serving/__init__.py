"""What a mount's processes do while it is there: agree with the kernel, answer, and count."""
