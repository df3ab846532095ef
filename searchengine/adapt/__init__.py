"""An encoder adapted to a collection: trained on it, judged on documents that training never saw.

adapting    the loop: questions → hard negatives → a linear map → judgement → the model
rotation    the loop for an orthogonal map, which changes the prefix and no score
questions   titles and sentences of documents, and logged clicks, in three parts by document
sample      the documents without their questions, encoded
material    both, and the questions by part
negatives   hard negatives of training questions
judging     questions before and after, and when the difference is beyond doubt
"""
