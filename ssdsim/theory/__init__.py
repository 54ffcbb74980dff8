"""The theory of SSD: numbers in, numbers out. One module per question; import the module, not the package.

Shared
    domain         checks of the arguments
    hit_curve      probability that the bonus token is among F cached candidates

The paper's results as printed, and their corrected closed forms
    acceptance     how many tokens a round yields, and with which probability it ends where
    fan_out        how to divide the speculation budget among the positions
    sampling       Saguaro sampling: trading acceptance for predictable bonus tokens
    speedup        speed-up over autoregressive and speculative decoding, bounds, dependence
    overheads      what SSD costs: draft compute, cache memory, traffic
    fallback       what to do on a miss, as a function of the batch
    trees          speculation trees instead of chains
    systems        cost relations of a speculative step on real hardware (seed 2)

The exact model
    row_law        what one row does in one round
    joint_law      how many rows of the batch end a round in which way
    round_time     mean duration of a round of the batch
    renewal        endless sequences
    lengths        laws of the output length
    finite         a static batch of finite requests
    closed         a closed loop: finished slots are refilled
    threshold      fallback by the number of misses
    tails          spread of completion times, gaps between bursts
    draft_devices  how many draft devices, and the joint optimum
"""
