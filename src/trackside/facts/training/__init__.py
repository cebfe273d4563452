"""What the model learned, by its loss curve."""
