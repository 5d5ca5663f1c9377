"""The activity of a node: its proxy's metrics, read again and again, as rates."""
