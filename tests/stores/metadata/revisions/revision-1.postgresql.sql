SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.lineage (
    child bigint NOT NULL,
    parent text NOT NULL,
    how text NOT NULL
);
COMMENT ON COLUMN public.lineage.parent IS 'the parent job''s id: it may be recorded later or never';
COMMENT ON COLUMN public.lineage.how IS 'dependency, requeue, restart or order';
CREATE TABLE public.run_nodes (
    node text NOT NULL,
    run bigint NOT NULL
);
CREATE TABLE public.runs (
    id bigint NOT NULL,
    cluster text NOT NULL,
    job text NOT NULL,
    began double precision NOT NULL,
    at double precision NOT NULL,
    name text,
    username text,
    state text,
    submitted double precision,
    started double precision,
    ended double precision,
    attempts integer NOT NULL,
    nodes json NOT NULL,
    gpus json NOT NULL,
    n_gpus integer,
    framework text,
    first_seen double precision NOT NULL,
    updated double precision NOT NULL,
    verdict bigint,
    judged double precision,
    family text,
    variant text,
    culprit text,
    certainty text,
    confidence double precision
);
COMMENT ON COLUMN public.runs.cluster IS 'empty where no input names it';
COMMENT ON COLUMN public.runs.began IS 'submit, else start, else 0: distinguishes runs of one job id';
COMMENT ON COLUMN public.runs.at IS 'start, else submit, else first_seen: sort key of listings';
COMMENT ON COLUMN public.runs.verdict IS 'the latest; its columns are repeated here so that a listing reads one table';
CREATE SEQUENCE public.runs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.runs_id_seq OWNED BY public.runs.id;
CREATE TABLE public.verdicts (
    id bigint NOT NULL,
    run bigint NOT NULL,
    made_at double precision NOT NULL,
    confirmed_at double precision NOT NULL,
    version text NOT NULL,
    family text NOT NULL,
    variant text,
    culprit text NOT NULL,
    certainty text,
    confidence double precision,
    digest text NOT NULL,
    bytes integer NOT NULL,
    document bytea NOT NULL
);
COMMENT ON COLUMN public.verdicts.confirmed_at IS 'last time the same verdict was produced';
COMMENT ON COLUMN public.verdicts.digest IS 'SHA-256 of the document, in hexadecimal';
COMMENT ON COLUMN public.verdicts.bytes IS 'of the document as it was given';
COMMENT ON COLUMN public.verdicts.document IS 'trackside.verdict/1 as JSON, zstd';
CREATE SEQUENCE public.verdicts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.verdicts_id_seq OWNED BY public.verdicts.id;
ALTER TABLE ONLY public.runs ALTER COLUMN id SET DEFAULT nextval('public.runs_id_seq'::regclass);
ALTER TABLE ONLY public.verdicts ALTER COLUMN id SET DEFAULT nextval('public.verdicts_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('1');
INSERT INTO public.lineage VALUES (2, '4242', 'dependency');
INSERT INTO public.run_nodes VALUES ('gpu017', 1);
INSERT INTO public.run_nodes VALUES ('gpu018', 1);
INSERT INTO public.run_nodes VALUES ('gpu017', 2);
INSERT INTO public.run_nodes VALUES ('gpu018', 2);
INSERT INTO public.runs VALUES (1, 'alpha', '4242', 1772438400, 1772438410, 'lm', 'ada', 'FAILED', 1772438400, 1772438410, 1772439000, 1, '["gpu017", "gpu018"]', '["gpu017:0"]', 16, 'hf_trainer', 1772439100, 1772439200, 2, 1772439200, 'A1', NULL, 'job', 'established', 0.9);
INSERT INTO public.runs VALUES (2, 'alpha', '4243', 1772439050, 1772439060, 'lm', 'ada', 'FAILED', 1772439050, 1772439060, 1772439300, 1, '["gpu017", "gpu018"]', '["gpu017:0"]', 16, 'hf_trainer', 1772439400, 1772439400, 3, 1772439400, 'A1', NULL, 'job', 'established', 0.9);
INSERT INTO public.verdicts VALUES (1, 1, 1772439100, 1772439100, '1.0', 'G1', NULL, 'none', 'established', 0.9, 'bde6f152f2eaa834c756f2ebb19c7b08c1f20b2a00566c42df370f1bc2c5d288', 1728, '\x28b52ffd60c0054d170046e46823208fdbb0029f04a915b178696d699af5c81044d85d4082fca3e00ffe31590b0891401a62005e005b004aa222e8f4697638141e76341c0d24a100f24040685404dff35972b48eb1c74f2fe7f7a20c0d12110b0ed8fbebbab97d526a2c5ddf3db626a653322af5803c20cfa2524a31302a82fc7c001b825ffbb8561afaaca3acf44715c19c545a0e95626002b99e150864bf7f213d4b95709b07643b25849ed37a4389142d83d41b669462acf5d7e9a2c271449c570741ed5056b385cfead95c79d3df81248ab745a77428a31893cf6f2aa6c788f936e97f1e34af450e3b0aa73b134c40681caf45a8029e96c5fa2cd471afc45dfa38dfccb970599bd6595a721904b800a8474daa29a2744e2754aadd1b1cbe2994bda727b05d3c365d1795a042c3b1589f85b85572cb2af29d3e6fbeeb7af83534f5fad7cacdb8ded85b2ed9729ebd84028c0c6322a9381a0d3ad70a4ef4d711a0f4d9fe355ebce8f37b2c2ba894a51fde8248d4aca1924520e09d2fd4100870cf5a51d467e1942de4fd2e6ac6c99aa5bf6bb1babfe50c1a0f7f2d39189716548fda1b5b9a29fc5e3b8fb2e7112f07808ea8f11c63ccb1229a14326c062002421832330f111025529239d236a5653f03451b97b29056a16ab9f6de57df14629947026a375040011d49769e118cd00ae4e5c2f973242f0d4f8bcdcf884e595dff8d982bbc617eb545b3ccdb93448bd61704ad17227040fdef8868843a35a7a8af2169dd8288225f023a5d7e336738386282c48c1de65eedcd4078e35db7629f1248ead0756909b01519746e2016cb8e3710a9e21952323fe3cb8b551519f0175d17a5e9bd38ce215d5ea6229be02a659c3f2cc53828b785f204a86302c1d0ff48245c4bf2b2cde5a0d774999694197152afdb277c4962f02d5f60902320ea5af114df5a5fcbc8109a2104d2cb2b8f562e43b00d1fd9b55455b5677a175e461028f067d9a6a2aed4c77525d0dd4bacd4673101fe6882c286377932a117fc609f6c002b548bab182bd4ba6b011ce5213fcd6aaa');
INSERT INTO public.verdicts VALUES (2, 1, 1772439200, 1772439200, '1.0', 'A1', NULL, 'job', 'established', 0.9, 'e5484aedbc5ac4734fa60709dd4256fcb61e90730f560c861311d3266863ad6a', 1740, '\x28b52ffd60cc059d170096246a25108fb8014045232509b45914a4fd59920f08005cb9fd0cc64fe8e03f6e5f2408008002c00563005f005d00b916643d122ee4ba6916a06e98c6712818381a0909ce7ae4bb7ed39618b6161b72ec79aeacc383440403443a7e86ee4186747a4d7d1fc6c6a8b69476aed570341c10e75a6b312ceb911d7d209d82670cf9529885184e98fae77aa4523b31986b312c01ae94f5ba1ab23dff04d519c18befec3064634aa374a5d85f4226895bb4fef2b21683b1ff521792a7793cbf308adc3361aeb1fc5ed7e7dbacfe4f344ddc554ba94797c588bcbe23a162a7e51fb5ff8ae0c4273d0d27adfe445221c169e29302ed5ab1de68b1b01dd364b6d0f3ae5b59727b14c3ca4df092001580052d6a390a49215c2ad772ee0f10ef28b645c84de4bbf87ccb2a0bc905a661bd1047ed7682dc24fa70bf59df97411d5d4439f6d1495c45b2bf1619d4c69e6f5123e58c0b2302a1348c93d09792917d860539bdbe8faf392bfb1d63534aae5539a8d9e021b9c6ec5409043c748e188100f8bd94cd8d16701b47ee1e4aaeb53687ed3363bdee91c103a6e1d14d8f056a95eb92f3d795eb49c7e81e685b74a9398091a8f19c62ceb1229a14326c062002429452951e111025529239d236a5653f03451b17b270f650885cdcd794868a28b35040cd0dac14d2a2129027e422b40209b970be9d921721b3b699e4d169d8ebb1a2a4d55ba32b6937c97b7bd26a21f583b8ed22840ea8da5d118dae6b7b7efa72a2861c0aaef13be0e9fa374382cb233e48cc1861b1d4e407ce1def4a2bf6a982a4cefe95bb815f64d1b9e25e5a6a6e22124bf264964fbeb2aeb71031ec2b7a8e54e83f334c047bb3cda1ea1c4aa17166b114fd2602b042955c34d7e57d21bd090286df2791905af2cb3697235ed38a34a5cc8429bd6eccf8ca63742dff6580232075ad7a8ad75a7f2a88201040088496571ea42c43be0d3bb26ba9ac6a9be94d788d2050e0cfc24d455ea9dfd3c50036dea0847d1813f08fd62958e4ee9848e8153f008f1a20154ac56d8c2d54e36b0b04e5859f660d55');
INSERT INTO public.verdicts VALUES (3, 2, 1772439400, 1772439400, '1.0', 'A1', NULL, 'job', 'established', 0.9, '910bed33d7c8f2fab5b60c880ff9a324c80f82a5ae13bb4b5e17668fc0def91e', 1554, '\x28b52ffd60120535160066e468231091db006eb1329925e97ea4ada52d0c08809ee83b9167fd3856fdba458a080028a05c61005e005d008958819374ebb0660c9c661e0c02b36020892424407092effa4b1b62b7d66b87a9e639631d1e2422182092f1b363cdb1a3515beafbee2d25ad95b413d1401291389c88888e0b4eb29f0f24a4e0153bbe96c73aec2a4afd1327a9d246ca25a2e312fa28bb5af0151b763d7fe4d415417beffa2e19c2908b257d2eae127bcb8f205ecf7acb0d448762ff95342c1a66d2fcbae7614d45b1a5229288e47b5d9b6fb3fa374f547136ada4fe502abe49fbaf0890d7a0a65da5d51b4a2a244098d7a0cfa1e6769d54efc358d74c69b25aa779d6ad6a793589736291db48800c007450424601a9732b2522737f807846b1eb396c229bc65fdaaa8c5d7830aad7e1a7d9468e9785bedb6fd6f7554e3ff6484cfd6316ec22d9db7acae952cdaf178e0d07a5c2c23c20e97c2d49d9675790d16bcbd79a3363bfdf5b6a49c48939cd53224e20b61e1b4d0201ef9c9f874080fb5ecbe63e0cb78b1f67ef20b6b27541d43e2bd5ebfe943b7844fcb1a8b9bcd329d721e6ad27d6957e8f35ceae8080a8b11c63d031464405c9b0192042a2143bf311202152d6b192e6fe77450b97b07057a1909baaf7b1e824931e610afc6ee09c0221d2b03c231ba1ea917e6751767796970e26d2e6604743c31efdad9305bdbdbc63dd48ed1f25f370f58871ab7808a8a8efdd3a8c966b08318d3119740e5e54fc0745bf8066a4701eabaccc69c24105934f5374c3f553ecddaacafd60693dc04f569c535d3d3f38f5ecb444261745a0aa2ffa8351de51216986f4c01840879159d350b78350681972d7ad87010023645252297dfddb09d9727f7d4c219bca4497609bf0f65a69696cc96cb42485a4dd6a2ec6243759eafb88f74940c188af7195e20a0c34e93d2a0da6b040cf35d302300778d2d5e36af6875ef009a5b6cdb0a42a7bfd41f05efc69885005');
SELECT pg_catalog.setval('public.runs_id_seq', 2, true);
SELECT pg_catalog.setval('public.verdicts_id_seq', 3, true);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.lineage
    ADD CONSTRAINT lineage_pkey PRIMARY KEY (child);
ALTER TABLE ONLY public.run_nodes
    ADD CONSTRAINT run_nodes_pkey PRIMARY KEY (node, run);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_identity UNIQUE (cluster, job, began);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.verdicts
    ADD CONSTRAINT verdicts_identity UNIQUE (run, made_at, digest);
ALTER TABLE ONLY public.verdicts
    ADD CONSTRAINT verdicts_pkey PRIMARY KEY (id);
CREATE INDEX lineage_parent ON public.lineage USING btree (parent);
CREATE INDEX run_nodes_of ON public.run_nodes USING btree (run);
CREATE INDEX runs_at ON public.runs USING btree (at, id);
CREATE INDEX runs_culprit ON public.runs USING btree (culprit, at, id);
CREATE INDEX runs_family ON public.runs USING btree (family, at, id);
CREATE INDEX runs_job ON public.runs USING btree (job, at);
CREATE INDEX runs_name ON public.runs USING btree (name, at, id);
CREATE INDEX runs_state ON public.runs USING btree (state, at, id);
CREATE INDEX verdicts_confirmed ON public.verdicts USING btree (confirmed_at);
CREATE INDEX verdicts_history ON public.verdicts USING btree (run, made_at, id);
ALTER TABLE ONLY public.lineage
    ADD CONSTRAINT lineage_child FOREIGN KEY (child) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.run_nodes
    ADD CONSTRAINT run_nodes_run FOREIGN KEY (run) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.verdicts
    ADD CONSTRAINT verdicts_run FOREIGN KEY (run) REFERENCES public.runs(id) ON DELETE CASCADE;
