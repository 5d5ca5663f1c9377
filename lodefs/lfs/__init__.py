"""The client side of Git LFS: objects are cut before they are sent."""
