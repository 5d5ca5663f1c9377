"""What tests of a mount use: a snapshot made of a dictionary, a proxy that serves it, a kernel."""
