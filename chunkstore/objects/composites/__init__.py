"""Many small packs in few objects: where they lie, and how they are read and moved."""
