"""Pictures and traces, drawn from records and sweeps; nothing here computes a result.

style         the look that all pictures share
timeline      lanes of verifier, speculator and fallback over the first rounds of a run
chrome_trace  the same rounds as a trace for Chrome or Perfetto
sweep         panels and lines of a sweep
"""
