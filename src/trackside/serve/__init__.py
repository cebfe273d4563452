"""RECEIVING AND ANSWERING: the receiver and the HTTP API; needs the extra ``serve``."""
