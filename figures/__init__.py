"""The project's pictures: small scripts that read results and draw, each with the data behind it.

`ssdsim figures [NAME ...] --from RESULTS --out DIR` draws them; `gallery` knows them by name. Each script offers
`draw(results) -> Drawing`: from embedded or freshly simulated data, and from the records in RESULTS where they serve.

    drawing   what a script returns, and how it is written      marks      who says so: the look of every origin
    inputs    run folders, profiles and reports in RESULTS      published  published numbers and the model's band
"""
