"""Formats that others define: Git, Git LFS, the Hugging Face Hub."""
