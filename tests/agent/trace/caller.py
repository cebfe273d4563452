"""A process that runs Python statements, one per line of standard input, and prints ``value`` as JSON after each.

``callers.py`` runs it as a script to call functions of libraries.
"""

import ctypes
import json
import os
import sys
import threading
import time

libraries = {}


class Identifier(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def load(path):
    libraries[path.rpartition("/")[2].partition(".")[0]] = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def function(name):
    library = "libnccl" if name.startswith("nccl") else "libcudart" if name.startswith("cuda") else "libcuda"
    return getattr(libraries[library], name)


def call(name, *arguments, times=1):
    """The last result of ``times`` calls, with integers passed as 64-bit values."""
    target, result = function(name), None
    converted = [ctypes.c_uint64(argument) if isinstance(argument, int) else argument for argument in arguments]
    for _ in range(times):
        result = target(*converted)
    return result


def join(name, ranks, rank, identifier=b"", config=None):
    comm = ctypes.c_void_p()
    optional_arguments = () if config is None else (config,)
    result = function(name)(ctypes.byref(comm), ranks, Identifier(identifier), rank, *optional_arguments)
    return [result, comm.value]


def split(parent, color):
    comm = ctypes.c_void_p()
    function("ncclCommSplit")(ctypes.c_void_p(parent), color, 0, ctypes.byref(comm), None)
    return comm.value


def elapsed(start, end, milliseconds):
    ctypes.c_float.in_dll(libraries["libcudart"], "stub_ms").value = milliseconds
    return function("cudaEventElapsedTime")(
        ctypes.byref(ctypes.c_float()), ctypes.c_void_p(start), ctypes.c_void_p(end)
    )


def set_integer(library, name, number):
    ctypes.c_int.in_dll(libraries[library], name).value = number


def in_threads(count, *arguments, times):
    threads = [threading.Thread(target=call, args=arguments, kwargs={"times": times}) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count


def in_child(*arguments, times):
    """Call a function in a forked child that then sleeps until it is killed; the child's pid."""
    child = os.fork()
    if not child:
        call(*arguments, times=times)
        time.sleep(600)
        os._exit(0)
    return child


if __name__ == "__main__":
    for line in sys.stdin:
        value = None
        exec(line)
        print(json.dumps(value), flush=True)
