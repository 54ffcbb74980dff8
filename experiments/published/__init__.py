"""Published figures of SSD, reproduced: `python -m experiments.published --out DIR`.

- `rows`: what was published
- `kernels`: how forwards grow with width and batch, from measured kernels
- `rates`: what the exact model predicts for a profile, and the fits to the rows
- `profiles`: builds the embedded profiles (`--build DATA`)
- `study`: the comparison, with the uncalibrated band and the ridge
"""
