"""How far off are the predictions? Measure a grid, calibrate on a part of it, predict the rest, publish the error.

    grid        which points are measured, and which of them the profile may see
    study       the measurement, the calibration, and the held-out runs beside their predictions
    predictions one run predicted by every method, and with measured inputs swapped in one at a time
    errors      errors per metric, what they come from, the machine's drift, whether the best point is found
    latency     runs with outcomes from a known law: what is missed there is time alone
    transfer    one kind of prompt predicted from another
    simulated   a simulator in the place of the executor: the same loop against a known truth
    report      all of it as JSON, Markdown and a picture

Used by `ssdsim validate`.
"""
