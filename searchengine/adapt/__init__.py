"""An encoder adapted to a collection: trained on it, judged on documents that training never saw.

adapting    the loop: questions → hard negatives → a linear map → judgement → the model
questions   titles and sentences of documents, and logged clicks, in three parts by document
sample      the documents without their questions, encoded
negatives   hard negatives of training questions
judging     nDCG@10 of questions before and after, and when the difference is beyond doubt
"""
