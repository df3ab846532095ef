"""Plots of measurements: numbers in, a matplotlib figure out, saved as SVG or PNG.

    from searchengine.measure.plots.history import read_history
    from searchengine.measure.plots.style import save
    from searchengine.measure.plots.training import training_curve

    save(training_curve(read_history("my-model")), "curve.svg")

matplotlib is imported when a plot is drawn.
"""
