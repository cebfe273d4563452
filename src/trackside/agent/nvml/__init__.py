"""NVML: the driver's library, the GPUs it knows, and what each of them tells; behind the sources ``gpu``, ``gpm``."""
