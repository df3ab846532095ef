"""An encoder adapted to a collection: trained on it, judged on documents that training never saw.

adapting            the loop: questions → hard negatives → a linear map → judgement → the model
rotation            the loop for an orthogonal map, which changes the prefix and no score
sampled_questions   titles and sentences of documents, and logged clicks, by part
material            the documents without their questions, encoded, and the questions
validation          questions before and after, and when the difference is beyond doubt
searched            the same by a temporary collection, in the mode that its users have
"""
