"""Embeddings into a memory map; a counter tells how far they are once they are flushed."""

import os

import numpy

ROWS, WIDTH, BATCH = 40, 16, 4


def write(path, text):
    with open(path + ".tmp", "w") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


if not os.path.exists("embeddings.npy"):
    shape = (ROWS, WIDTH)
    numpy.lib.format.open_memmap("new.tmp.npy", mode="w+", dtype="f4", shape=shape)
    os.replace("new.tmp.npy", "embeddings.npy")
out = numpy.load("embeddings.npy", mmap_mode="r+")
start = 0
if os.path.exists("progress"):
    with open("progress") as file:
        start = int(file.read())
for at in range(start, ROWS, BATCH):
    # before
    rows = numpy.random.default_rng(at).normal(size=(BATCH, WIDTH))
    out[at : at + BATCH] = rows
    out.flush()
    write("progress", str(at + BATCH))
