"""Real clients of the Hugging Face Hub, against a site of two nodes that mirrors a hub."""
