"""The Docker volume plugin: volumes that are snapshots, mounted while containers use them."""
