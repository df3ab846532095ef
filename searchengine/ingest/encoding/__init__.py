"""A corpus encoded into a folder, part by part, here or on the machines of a Ray cluster.

run        all parts that are not encoded yet
unit       one part → one file of vectors
on_ray     parts as tasks of a Ray cluster
folder     the folder: its manifest and its files of vectors
reader     the vectors of a folder, for `add`
"""
