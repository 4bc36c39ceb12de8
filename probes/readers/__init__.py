"""Facts from the machine, without opinions.

The only place that imports pyverbs, pynvml and psutil.
"""
