"""The data sets of the worlds: which there are, where they lie on this machine, and how they get there.

``sets`` is the table, ``store`` finds, links, copies and removes, ``fetch`` downloads, ``command`` is ``turngym data``.
"""
