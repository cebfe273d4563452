"""Dialects: foreign metric names and labels mapped to Trackside's. One module per source, data only."""
