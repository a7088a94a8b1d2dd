"""What operator and gateway share: stores of Kubernetes objects that watches fill, and the rules of served names."""
