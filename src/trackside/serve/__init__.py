"""WHAT IS SENT TO US: the receiver and the HTTP API; needs the extra ``serve``."""
