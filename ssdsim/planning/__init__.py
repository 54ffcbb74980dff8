"""Many scenarios at once: sweeps over any field, and what a change brings about.

grid        axes and ranges as they are written      plan     what a sweep computes, as plain data
stages      work done once per distinct input        blocks, slot_table   the exact method in arrays
sweep       the loop over tasks                      engines  here, in processes, on Ray or Dask
results     the table                                store    parts on disk, resuming, files
views       results laid out for table and picture   whatif   before, after, and why
scalar_fit  one unknown number from one observation
"""
