"""What lodefs tells Kubernetes itself, beside the CSI driver: labels of nodes."""
