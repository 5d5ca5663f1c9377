"""Work in parts, by any executor or by many machines."""
