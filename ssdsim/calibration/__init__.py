"""From the records of runs to a `PairProfile`: what was observed, how surely, and in which range.

    runs                  run folders, and what of their tables the fits want
    trials, acceptance    acceptance per position and its spread between requests, by maximum likelihood
    guesses, miss_law     hit curves from ranks and look-ups: a power law, or a table where it is none
    hit_curves            the curves of runs as people read them: shares, law and intervals
    phases, terms, latency   seconds of each phase as a function of its shape, robustly
    behaviours, estimates, profile_from_records   the parts put together, with warnings where they rest on little
    forced                the same of texts that were only read, without an engine

The simulator and the executor write the same tables, so calibration is tested against simulated truth.
"""
