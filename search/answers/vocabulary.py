"""What answers and questions are called, in the languages that models write."""

ANSWER_WORDS = (
    (
        "answers?|final result",
        (
            "is|are|was|equals|becomes|(?:must|should|will|would|can only|has to) be"
            "|(?:come|work|turn)s(?: out)? to(?: be)?"
        ),
    ),
    ("respuestas?", "es|son"),
    ("r[ée]ponses?", "est|sont"),
    ("antwort(?:en)?", "ist|lautet|sind"),
    ("rispost[ae]", "è|sono"),
    ("respostas?", "é|são"),
    ("antwoord(?:en)?", "is|zijn"),
    ("odpowied[źz]", "to|jest"),
    ("ответ", "равен|это|—|–"),
    # In Turkish and Hindi "is" comes after the value, or is a suffix of it.
    ("cevap|yanıt", r"(?=[ (*]{1,4}(?-i:[A-J]\b|\d))"),
    ("đáp án|câu trả lời", "là"),
    ("jawaban(?:nya)?", "adalah"),
    ("الإجابة|الجواب", "هي|هو"),
    ("उत्तर", r"है|(?=[ (*]{1,4}(?-i:[A-J]\b|\d))"),
    ("答案|答え?|解答|正解|正答", "是|应[为為是]|[为為]|は|】|选|選"),
    ("정답|답", "은|는"),
    (r"(?<!\d )ans|vastaus|απάντηση|תשובה|відповідь|válasz|odpověď", ""),
    ("svar(?:et)?", "är|er"),
    ("răspuns(?:ul)?", "este"),
    ("คำตอบ(?:ที่ถูกต้อง|สุดท้าย)?", "คือ"),
)
"""What an answer is called in a language, and the words between that and the answer, beside a colon."""
ANSWER = "|".join(nouns for nouns, _ in ANSWER_WORDS)
RIGHT = (
    r"correct[ae]?|right|best|valid|corret[ao]|corrett[ao]|corect[aă]?|richtig|korrekt|juiste?|juste|exacte|esatta"
    r"|верн\w{2}|правильн\w{2}|đúng|benar|doğru|popraw\w{2}|prawidłow\w|सही|(?:ال)?صحيحة?|ถูกต้อง"
)
"""What the right answer and the right choice are called."""
ANSWER_ADJECTIVES = rf"{RIGHT}|final[ei]?|yang (?:benar|tepat|betul)|akhir|cuối cùng|النهائية|النهائي"
"""Adjectives that come after the noun."""

QUESTION = (
    "questions?|problems?|q|example|exercises?|task|prompt|instructions?|input|human|user|student"
    "|pregunta|problema|ejercicio|usuario|problème|exercice|utilisateur|frage|aufgabe|benutzer|nutzer|domanda|esercizio"
    "|utente|pergunta|questão|exercício|usuário|vraag|opgave|pytanie|zadanie|użytkownik|вопрос|задача|задание|пользователь"
    "|soru|kullanıcı|câu hỏi|bài toán|đề bài|pertanyaan|soal|pengguna|السؤال|سؤال|المسألة|المستخدم|प्रश्न|सवाल"
    "|问题|題目|题目|问|問題|質問|問|用户|例题|문제|질문|사용자|kysymys|tehtävä|ερώτηση|πρόβλημα|שאלה|питання|задача|kérdés|feladat|otázka|úloha|příklad|fråga"
    "|uppgift|întrebarea?|คำถาม|โจทย์"
)
"""What the next question is called where a model goes on into one, and who asks it."""
