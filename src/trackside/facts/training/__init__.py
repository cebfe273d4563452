"""What the model learned, by its curve."""
