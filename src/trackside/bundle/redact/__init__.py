"""What tells who or where, replaced by names that tell nothing, the same one everywhere.

Each kind of such things is a module with one class (:class:`trackside.bundle.redact.kind.Kind`): it learns from all
texts first, then gives each thing a name, then replaces. So one node stays one node, in every file and format.
"""
