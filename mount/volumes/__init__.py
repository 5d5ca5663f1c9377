"""What volumes of Docker and of Kubernetes have alike: options, files, and changes."""
