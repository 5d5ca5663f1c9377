"""What a node does: its proxy's metrics, looked at again and again, as rates."""
