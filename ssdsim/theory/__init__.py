"""The theory of SSD: numbers in, numbers out. One module per question; import the module, not the package.

domain         checks of the arguments, shared by all
acceptance     how many tokens a round yields, and with which probability it ends where
hit_curve      probability that the bonus token is among F cached candidates
fan_out        how to divide the speculation budget among the positions
sampling       Saguaro sampling: trading acceptance for predictable bonus tokens
speedup        the paper's speed-up results as printed, with their corrected counterparts
overheads      what SSD costs: draft compute, cache memory, traffic
fallback       what to do on a miss, as a function of the batch
trees          speculation trees instead of chains
systems        cost relations of a speculative step on real hardware
renewal        exact long-run rate of a lock-stepped batch
finite         exact rate for a finite output length
joint_law      joint law of the batch's look-ups
tails          spread and tails of the time a request takes
draft_devices  how many draft devices, and the joint optimum
"""
