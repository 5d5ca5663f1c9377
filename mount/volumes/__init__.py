"""The parts that volumes of Docker and of Kubernetes share: options, files, and changes."""
