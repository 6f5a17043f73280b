"""The words of made-up job postings: countries with their cities and companies, titles, skills and sentences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Country:
    """A country as its postings show it; `median_salary` is a middling year's salary in its currency."""

    code: str
    currency: str
    median_salary: int
    zone: str
    cities: tuple[str, ...]
    names: tuple[str, ...]
    industries: tuple[str, ...]
    legal_form: str
    titles: tuple[str, ...]


# Large countries first: those in front get most of the postings.
COUNTRIES = (
    Country(
        *("US", "USD", 95_000, "-05:00"),
        ("New York", "Austin", "San Francisco", "Chicago", "Seattle", "Boston"),
        ("Bluestem", "Harbor & Pine", "Northgate", "Redwood", "Lakeshore", "O'Malley", "Ironbridge", "Juniper"),
        ("Software", "Health", "Robotics", "Foods", "Energy", "Freight", "Insurance", "Media"),
        "Inc.",
        ("Staff Engineer", "Registered Nurse", "Account Executive", "Forklift Operator"),
    ),
    Country(
        *("DE", "EUR", 58_000, "+01:00"),
        ("Berlin", "München", "Hamburg", "Köln", "Düsseldorf", "Nürnberg"),
        ("Nordwind", "Grünfeld", "Kranich", "Lindenhof", "Müller & Söhne", "Sonnenberg", "Eisvogel", "Schäfer"),
        ("Logistik", "Maschinenbau", "Softwarehaus", "Pflege", "Energie", "Bäckereien", "Versicherung", "Verlag"),
        "GmbH",
        ("Softwareentwickler (m/w/d)", "Pflegefachkraft (m/w/d)", "Straßenbauer (m/w/d)", "Bürokaufmann (m/w/d)"),
    ),
    Country(
        *("JP", "JPY", 5_600_000, "+09:00"),
        ("東京", "大阪", "京都", "札幌", "福岡", "横浜"),
        ("さくら", "青空", "山田", "ひまわり", "東海", "富士見", "みどり", "花丸"),
        ("ソフトウェア", "物流", "製薬", "電機", "食品", "出版", "建設", "銀行"),
        "株式会社",
        ("ソフトウェアエンジニア", "データアナリスト", "看護師", "営業担当"),
    ),
    Country(
        *("FR", "EUR", 45_000, "+01:00"),
        ("Paris", "Lyon", "Orléans", "Saint-Étienne", "Nîmes", "Besançon"),
        ("Hélianthe", "L'Étoile", "Belle Forêt", "Saint-Rémy", "Mésange", "Clair Océan", "Bâtir", "Garçon & Fils"),
        ("Logiciels", "Santé", "Énergie", "Transports", "Édition", "Pâtisserie", "Assurances", "Mécanique"),
        "SARL",
        ("Développeur logiciel (H/F)", "Infirmière diplômée (H/F)", "Chef de projet (H/F)", "Pâtissier (H/F)"),
    ),
    Country(
        *("GB", "GBP", 48_000, "+00:00"),
        ("London", "Manchester", "Leeds", "Bristol", "Glasgow", "Stoke-on-Trent"),
        ("Thistle", "Ashworth", "Kingfisher", "Fenwick & Daughters", "Heather", "Albion", "Rookery", "Saltmarsh"),
        ("Software", "Care", "Railways", "Foods", "Energy", "Publishing", "Insurance", "Brewing"),
        "Ltd",
        ("Software Developer", "Staff Nurse", "Quantity Surveyor", "Warehouse Operative"),
    ),
    Country(
        *("IN", "INR", 1_400_000, "+05:30"),
        ("बेंगलुरु", "मुंबई", "दिल्ली", "Hyderabad", "Pune", "Chennai"),
        ("Kaveri", "Himalaya", "सूर्य", "Chandra", "Lotus", "Ganga", "Mayura", "Saraswati"),
        ("Software", "Pharma", "Textiles", "Logistics", "Steel", "Consulting", "Foods", "Telecom"),
        "Pvt Ltd",
        ("सॉफ्टवेयर इंजीनियर", "Java Developer", "Support Executive", "QA Analyst"),
    ),
    Country(
        *("ES", "EUR", 34_000, "+01:00"),
        ("Madrid", "Barcelona", "Málaga", "A Coruña", "Cádiz", "León"),
        ("Olivares", "Montaña", "Muñoz", "Girasol", "Peñafiel", "Río Claro", "Ibáñez e Hijos", "Cigüeña"),
        ("Informática", "Sanidad", "Energía", "Logística", "Alimentación", "Construcción", "Seguros", "Diseño"),
        "S.L.",
        ("Ingeniera de software", "Enfermero", "Diseñadora gráfica", "Técnico de sistemas"),
    ),
    Country(
        *("BR", "BRL", 96_000, "-03:00"),
        ("São Paulo", "Rio de Janeiro", "Brasília", "Florianópolis", "Belém", "Goiânia"),
        ("Araucária", "Ipê", "Jacarandá", "Sabiá", "Conceição", "Maré", "Tucano", "Irmãos Simões"),
        ("Tecnologia", "Saúde", "Energia", "Alimentação", "Mineração", "Educação", "Construções", "Seguros"),
        "Ltda.",
        ("Engenheiro de dados", "Enfermeira", "Analista de sistemas", "Técnico de segurança"),
    ),
    Country(
        *("UA", "UAH", 720_000, "+02:00"),
        ("Київ", "Львів", "Харків", "Одеса", "Дніпро", "Їжакове"),
        ("Соняшник", "Ластівка", "Карпати", "Калина", "Дніпро-Світ", "Зоря", "Журавель", "Яблуня"),
        ("Софт", "Енерго", "Логістика", "Агро", "Медицина", "Метал", "Освіта", "Будова"),
        "ТОВ",
        ("Інженер-програміст", "Аналітик даних", "Медсестра", "Водій"),
    ),
    Country(
        *("GR", "EUR", 24_000, "+02:00"),
        ("Αθήνα", "Θεσσαλονίκη", "Πάτρα", "Ηράκλειο", "Λάρισα", "Βόλος"),
        ("Ήλιος", "Ελαιώνας", "Αιγαίο", "Δελφίνι", "Ολύμπια", "Θάλασσα", "Παπαδόπουλος", "Κύκνος"),
        ("Λογισμικό", "Ναυτιλία", "Ενέργεια", "Τρόφιμα", "Υγεία", "Εκδόσεις", "Τουρισμός", "Μεταφορές"),
        "Α.Ε.",
        ("Μηχανικός λογισμικού", "Αναλυτής δεδομένων", "Νοσηλευτής", "Λογιστής"),
    ),
    Country(
        *("EG", "EGP", 240_000, "+02:00"),
        ("القاهرة", "الإسكندرية", "الجيزة", "أسوان", "الأقصر", "طنطا"),
        ("النيل", "الأهرام", "الياسمين", "النور", "الواحة", "الفجر", "الصقر", "المنارة"),
        ("للبرمجيات", "للطاقة", "للأدوية", "للنقل", "للأغذية", "للنشر", "للتأمين", "للبناء"),
        "ش.م.م",
        ("مهندس برمجيات", "محلل بيانات", "ممرضة", "محاسب"),
    ),
    Country(
        *("PL", "PLN", 110_000, "+01:00"),
        ("Warszawa", "Kraków", "Łódź", "Wrocław", "Gdańsk", "Poznań"),
        ("Żuraw", "Bocian", "Świerk", "Jaskółka", "Nowak i Wspólnicy", "Wisła", "Źródło", "Jesion"),
        ("Oprogramowanie", "Zdrowie", "Energia", "Logistyka", "Żywność", "Budownictwo", "Szkolenia", "Usługi"),
        "sp. z o.o.",
        ("Programista", "Pielęgniarka", "Księgowy", "Kierowca wózka widłowego"),
    ),
    Country(
        *("KR", "KRW", 52_000_000, "+09:00"),
        ("서울", "부산", "인천", "대전", "광주", "수원"),
        ("한빛", "무궁화", "백두", "새벽", "은하", "푸른솔", "다온", "가람"),
        ("소프트웨어", "전자", "물류", "제약", "식품", "건설", "교육", "에너지"),
        "주식회사",
        ("백엔드 개발자", "데이터 엔지니어", "간호사", "회계 담당자"),
    ),
    Country(
        *("SE", "SEK", 540_000, "+01:00"),
        ("Stockholm", "Göteborg", "Malmö", "Umeå", "Örebro", "Västerås"),
        ("Björk", "Älvstrand", "Trädgård", "Svalan", "Åkesson & Co", "Norrsken", "Blåklint", "Räven"),
        ("Mjukvara", "Vård", "Energi", "Åkeri", "Förlag", "Stål", "Försäkring", "Livsmedel"),
        "AB",
        ("Systemutvecklare", "Sjuksköterska", "Förskollärare", "Lagerarbetare"),
    ),
    # Its code is what YAML takes for a boolean, as the next one's is what many readers take for a missing value.
    Country(
        *("NO", "NOK", 620_000, "+01:00"),
        ("Oslo", "Bergen", "Tromsø", "Ålesund", "Bodø", "Sandnessjøen"),
        ("Fjellrev", "Bjørnebær", "Havørn", "Lyngheim", "Nordlys", "Strømmen", "Grønnlia", "Multe"),
        ("Programvare", "Sjømat", "Energi", "Skipsfart", "Helse", "Bygg", "Forsikring", "Forlag"),
        "AS",
        ("Utvikler", "Sykepleier", "Rørlegger", "Økonomimedarbeider"),
    ),
    Country(
        *("NA", "NAD", 310_000, "+02:00"),
        ("Windhoek", "Swakopmund", "Lüderitz", "Walvis Bay", "Oshakati", "Rundu"),
        ("Welwitschia", "Oryx", "Namib Sands", "Okavango", "Dune", "Quiver Tree", "Etosha", "Baobab"),
        ("Mining", "Tourism", "Fisheries", "Transport", "Energy", "Foods", "Telecom", "Construction"),
        "(Pty) Ltd",
        ("Mine Surveyor", "Field Guide", "Diesel Mechanic", "Pharmacist"),
    ),
)

LEVELS = ("", "Junior ", "Senior ", "Lead ")
TITLES = (
    "Data Engineer",
    "Data Scientist",
    "Backend Developer",
    "Frontend Developer",
    "DevOps Engineer",
    "Machine Learning Engineer",
    "Product Manager",
    "UX Designer",
    "QA Engineer",
    "Security Analyst",
    "Business Analyst",
    "Customer Success Manager",
    "Account Manager",
    "Marketing Specialist",
    "HR Business Partner",
    "Financial Controller",
    "Mechanical Engineer",
    "Electrician",
    "Supply Chain Planner",
    'Technical Writer ("docs as code")',
)

SKILLS = (
    "Python",
    "SQL",
    "Spark",
    "Parquet",
    "DuckDB",
    "Kubernetes",
    "Docker",
    "AWS",
    "Terraform",
    "Java",
    "Kotlin",
    "Scala",
    "Go",
    "Rust",
    "C++",
    "C#",
    "TypeScript",
    "React",
    "Linux",
    "Git",
    "Airflow",
    "Kafka",
    "Excel",
    "SAP",
    "Figma",
    "English",
    "Deutsch",
    "Français",
    "日本語",
    "Ελληνικά",
    "communication",
    "first aid",
)

# A description is one of each, 50 to 200 characters together. Sentences hold what careless readers trip over: quotes,
# a backslash, a line break, a tab, letters of many scripts, emoji of one and of several code points.
OPENINGS = (
    "Join a small team that ships every week and talks to its users.",
    "We are looking for a curious colleague who likes to finish things.",
    'Our motto is "measure first", and we mean it.',
    "You will own a service from the first sketch to the night it breaks.",
    "Wir suchen zum nächstmöglichen Zeitpunkt Verstärkung für unser Büro.",
    "Rejoignez une équipe à taille humaine, près du marché.",
    "Buscamos a alguien con ganas de aprender y de enseñar.",
    "私たちのチームで一緒に働きませんか。経験よりも好奇心を大切にしています。毎日の学びを楽しめる方を歓迎します。",
    "Αναζητούμε συνεργάτη με όρεξη για δουλειά και χιούμορ.",
    "Шукаємо людину, яка любить порядок і не боїться змін.",
    "نبحث عن زميل يحب التعلم ويعمل بروح الفريق في بيئة هادئة.",
    "Replacing someone on parental leave, with a good chance to stay.",
)
MIDDLES = (
    "Shifts are fixed; weekends are free.",
    "You know your tools: editor, shell, C:\\ drive and all.",
    "Duties:\n- plan\n- build\n- explain",
    "Two days a week from home are usual.",
    "Experience with large tables helps.",
    "A driving licence (class B) is needed.",
    "Salary:\tby agreement, after the trial period.",
    "Sprachniveau: mindestens B2.",
)
CLOSINGS = (
    "",
    "",
    "",
    "Apply by e-mail, no cover letter.",
    "Dogs are welcome.",
    "Start: as soon as possible.",
    "Crèche next door.",
    "We answer within 5 days 🚀",
    "Bring your bike 🚲 or your family 👩‍👩‍👧",
)

HOSTS = ("jobs.example.com", "careers.example.org", "board.example.net", "work.example", "stellen.example")
# None of these is a time in ISO 8601, nor one that a lenient reader takes for one.
INVALID_TIMES = ("3 days ago", "31/12/2025 09:00", "2026-02-30T10:00:00Z", "n/a", "", "2026-01-01T27:61:00+01:00")
# What a broken scraper leaves in place of a posting.
INVALID_POSTINGS = (
    "<html><body>502 Bad Gateway</body></html>",
    "Traceback (most recent call last):",
    "# retry later",
    "url;title;company;city",
)
INVALID_SALARIES = ("negotiable", "45k", {"amount": 45_000})
