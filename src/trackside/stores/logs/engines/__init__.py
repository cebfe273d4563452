"""Log stores that can be asked, one a module, whose name is its kind and which has its class as ``LOG_STORE``."""
