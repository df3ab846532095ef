"""Plots of measurements: numbers in, a matplotlib figure out, saved as SVG or PNG.

    from searchengine.report.plots.history import read_history
    from searchengine.report.plots.style import save
    from searchengine.report.plots.training import training_curve

    save(training_curve(read_history("my-model")), "curve.svg")

matplotlib is imported when a plot is drawn.
"""
