"""From the records of runs to a `PairProfile`: what was observed, how surely, and in which range.

    runs                  run folders, and the tables' columns as the fits want them
    acceptance            acceptance per position and its spread between requests, by maximum likelihood
    hit_curves, power_law_fit   hit curves from bonus ranks
    latency, terms        seconds of each phase as a function of its shape, robustly
    profile_from_records  the parts put together, with warnings where they rest on little

The simulator and the executor write the same tables, so calibration is tested against simulated truth.
"""
