"""NVML: the driver's library, its GPUs, and what each GPU reports; used by the sources ``gpu`` and ``gpm``."""
